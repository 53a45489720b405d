import java.io.File;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.functions.ScalarFunction;

/** Each id once, as stream.py has it for Spark. Arguments: input, output, and the file that makes a task throw. */
public final class FirstOfEach {
  /** Throws once for each time that the file is there. */
  public static class Checked extends ScalarFunction {
    public Long eval(Long id, String order) {
      if (new File(order).delete()) {
        throw new IllegalStateException("thrown at " + System.currentTimeMillis());
      }
      return id;
    }
  }

  public static void main(String[] arguments) {
    TableEnvironment tables = TableEnvironment.create(EnvironmentSettings.inStreamingMode());
    tables.createTemporarySystemFunction("checked", Checked.class);
    tables.executeSql(
        "CREATE TABLE landed (id BIGINT, arrived AS PROCTIME()) WITH ('connector' = 'filesystem', 'format' = 'csv',"
            + " 'source.monitor-interval' = '100 ms', 'path' = '" + arguments[0] + "')");
    tables.executeSql(
        "CREATE TABLE firsts (id BIGINT) WITH ('connector' = 'filesystem', 'format' = 'csv',"
            + " 'path' = '" + arguments[1] + "')");
    tables.executeSql(
        "INSERT INTO firsts SELECT id FROM (SELECT id, ROW_NUMBER() OVER (PARTITION BY id ORDER BY arrived) AS place"
            + " FROM landed WHERE checked(id, '" + arguments[2] + "') >= 0) WHERE place = 1");
  }
}
