import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Locale;

/**
 * Reads a table through a JDBC driver: {@code java -cp DRIVER.jar JdbcRows.java URL TABLE FETCH_SIZE USER PASSWORD}.
 *
 * The URL begins with {@code jdbc:}. A fetch size of 0 leaves the driver's default. Prints a line of JSON,
 * as peer.py does.
 */
public class JdbcRows {
    /** Peak memory of this process (VmHWM); it includes Java's compiler, which runs in the same process. */
    static long peakMemoryBytes() throws Exception {
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmHWM:")) {
                return Long.parseLong(line.replaceAll("\\D", "")) * 1024;
            }
        }
        return 0;
    }

    /** Reads all columns of all rows, and returns the number of rows. */
    static long read(Statement statement, String table) throws SQLException {
        long count = 0;
        try (ResultSet rows = statement.executeQuery("select * from " + table)) {
            int columns = rows.getMetaData().getColumnCount();
            while (rows.next()) {
                for (int column = 1; column <= columns; column++) {
                    rows.getObject(column);
                }
                count++;
            }
        }
        return count;
    }

    public static void main(String[] arguments) throws Exception {
        int fetchSize = Integer.parseInt(arguments[2]);
        try (Connection connection = DriverManager.getConnection(arguments[0], arguments[3], arguments[4])) {
            // PostgreSQL's driver ignores the fetch size unless a transaction keeps the cursor open.
            connection.setAutoCommit(false);
            try (Statement statement = connection.createStatement()) {
                if (fetchSize > 0) {
                    statement.setFetchSize(fetchSize);
                }
                long began = System.nanoTime();
                long rows = read(statement, arguments[1]);
                double seconds = (System.nanoTime() - began) / 1e9;
                System.out.printf(
                    Locale.ROOT,
                    "{\"seconds\": %.9f, \"rows\": %d, \"bytes\": 0, \"peak_memory_bytes\": %d}%n",
                    seconds, rows, peakMemoryBytes());
            }
        }
    }
}
